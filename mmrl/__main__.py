"""`python -m mmrl` is `mmrl`."""

from mmrl.ui.cli import main

main(prog_name="mmrl")
