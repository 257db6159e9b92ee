"""The documentation as a web site: `python -m tools.docs_site`, in English and Chinese.

The pages are the Markdown files of the repository, as they are read on a code host. `site_map` has the order of the
pages, `extension` is what Sphinx needs to take them as they are, and `chinese` makes the Chinese pages searchable.
"""
