"""Programs beside a run, in environments of their own, asked over HTTP."""
