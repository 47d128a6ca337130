"""The file for ms-swift's `--external_plugins`, which puts this folder first on sys.path: no module with the name of another
package may lie beside it."""

from mmrl_interop.swift import register

register()
