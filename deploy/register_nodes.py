"""``python -m deploy.register_nodes FOLDER``: tell the SuperLink which SuperNodes may connect.

Every public key FOLDER/*.pub is registered under the name of its file, which is its client's: the key's SuperNode can
answer under no other (docs/protocol.md, "Whose failure it is"). Keys that are registered already stay so, which
makes the command safe to repeat. A SuperLink that restarts with its database remembers them. A key beside which there
is a file NAME.removed is that of a client that must not come back: it is passed over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.flower import Connection, FlowerError, add_connection_arguments, connection_of

_KNOWN = "already in use"  # Flower's message of a public key that it knows


def is_removed(public: Path) -> bool:
    """Return whether the client with this public key is to stay out, by the marker beside the key's place."""
    return public.with_suffix(".removed").exists()


def register_nodes(connection: Connection, folder: Path) -> list[str]:
    """Register the public keys in a folder and return the names of those that were new.

    The folder holds ``NAME.pub`` in OpenSSH's format for every SuperNode, and ``NAME.removed`` for those to pass over.
    Raises ValueError if there is no public key to register; FlowerError if the SuperLink refuses one for another reason
    than that it knows it.
    """
    keys = sorted(key for key in folder.glob("*.pub") if not is_removed(key))
    if not keys:
        raise ValueError(f"{folder} must hold the public keys *.pub of the SuperNodes, got none; see deploy.make_keys")
    new = []
    for key in keys:
        try:
            connection.ask("supernode", "register", str(key.absolute()), f"--name={key.stem}")
            new.append(key.stem)
        except FlowerError as error:
            if _KNOWN not in str(error):
                raise
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 1 where a key was not registered."""
    parser = argparse.ArgumentParser(prog="python -m deploy.register_nodes", description="Register SuperNodes.")
    parser.add_argument("folder", type=Path)
    add_connection_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        new = register_nodes(connection_of(options), options.folder)
    except (ValueError, FlowerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"registered: {', '.join(new) or 'nothing new'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
