"""Write a tiny checkpoint to a folder: `python -m mmrl.policies.vlm.tiny FAMILY FOLDER`."""

from __future__ import annotations

import argparse

from mmrl.api.errors import UserError
from mmrl.policies.vlm import tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=tiny.__doc__)
    parser.add_argument("family", help=f"{', '.join(tiny.FAMILIES)}, or a plugin's")
    parser.add_argument("folder")
    parser.add_argument("--hidden", type=int, default=tiny.HIDDEN)
    parser.add_argument("--layers", type=int, default=tiny.LAYERS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        tiny.save(args.folder, args.family, hidden=args.hidden, layers=args.layers, seed=args.seed)
    except UserError as error:
        parser.error(error.what)


if __name__ == "__main__":
    main()
