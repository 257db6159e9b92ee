"""The viewer: experiences of a database as a page in a browser."""
