"""Everything that a plugin imports: types, interfaces, specs, hooks, errors, helpers. It imports no other part of mmrl."""
