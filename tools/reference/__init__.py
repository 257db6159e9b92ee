"""The pages of the reference that are made from the source: `python -m tools.reference`.

Each module makes one page, in English and Chinese, from where the fact lives. A test says when a page is old.
"""
