"""`python -m mmrl` is `mmrl`."""

from mmrl.cli import main

main(prog_name="mmrl")
