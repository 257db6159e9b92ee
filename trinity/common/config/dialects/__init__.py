"""Configuration files of other tools: veRL's, and ModelArts' form of them.

Such a file becomes our values before the schema sees it; each value keeps the place where it was written, so that
problems name the key that the user wrote. What happens to a key is said in one table (`table.py`), which the
translation, `trinity convert config`, the suggestions and the page of dialects read.
"""

from trinity.common.config.dialects.opening import Opened, open_source

__all__ = ["Opened", "open_source"]
