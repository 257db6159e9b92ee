"""What Python programs call: `trinity.run` and its neighbours."""
