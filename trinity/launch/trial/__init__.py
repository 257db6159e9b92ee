"""Tasks and data without training: `trinity try`, `debug`, `data`."""
