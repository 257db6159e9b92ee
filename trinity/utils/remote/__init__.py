"""Files at addresses such as `s3://bucket/data`: local copies, uploads."""
