"""Metadata that depends on where the project lives: `owner` in pyproject.toml is the one place that
says it.

The package index shows the README by itself, so links in it that are relative become links to the
repository there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2311.12356"


class Home(MetadataHookInterface):
    """Fills in the URLs and the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what `dynamic` in pyproject.toml promises."""
        metadata["urls"] = urls(self.config["owner"])
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["urls"]["Repository"]),
        }


def urls(owner: str) -> dict[str, str]:
    """Where everything is."""
    home = f"https://github.com/{owner}/rlploss"
    return {
        "Repository": home,
        "Documentation": f"https://{owner}.github.io/rlploss/",
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Paper": PAPER,
    }


def absolute(text: str, home: str) -> str:
    """Markdown whose relative links and pictures lead to `home`."""
    text = re.sub(r'(src|srcset)="(?!https?:)', rf'\1="{home}/raw/main/', text)
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{home}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{home}/blob/main/", text)
