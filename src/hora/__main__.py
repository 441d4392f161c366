"""``python -m hora`` is the ``hora`` command."""

from __future__ import annotations

from hora.cli.main import main

if __name__ == "__main__":
    main()
