"""What is run by hand or by tests beside the package.

It is a regular package, since a library installs a package of this name, which would win over a folder.
"""
