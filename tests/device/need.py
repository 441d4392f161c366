"""Skips tests where there is no compiler for the stand-in device; where all must run, CI makes a failure of that."""

from __future__ import annotations

import shutil

import pytest

__all__ = ["needs_standin"]

needs_standin = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the stand-in device with")
