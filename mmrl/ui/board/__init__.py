"""The board: a local web app on a folder of runs. It reads run folders and nothing else, and writes an index of its own.

`places` finds runs, `state` says how they stand, `index` keeps on disk what is too much to read again, `watching` is the process
that fills it, `search` and `columns` read it, `pages` draws and `app` serves.
"""
