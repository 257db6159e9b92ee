"""What a run amounts to, from what it left in the folder of its job.

Its figures, their picture, and both as lines of a terminal and as a page.
"""
