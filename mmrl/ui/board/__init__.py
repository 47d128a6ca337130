"""The board: a local web app for a folder of runs. It only reads run folders and writes an index to the user's cache.

`places` finds runs, `state` reads their state, `index` stores metrics and places of rollouts on disk, `watching` is the process
that fills the index, `search` and `columns` query it, `pages` renders HTML and `app` serves it.
"""
