"""Everything that a plugin imports: types, interfaces, specs, hooks, errors and helpers. It imports nothing else of mmrl."""
