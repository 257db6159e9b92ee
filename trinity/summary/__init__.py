"""The summary of a run, from the files in its job folder.

Its figures, their picture, and both as lines of a terminal and as a page.
"""
