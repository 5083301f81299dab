"""The native CPU library of quantfarm: its version and where its files lie. Imports nothing heavy, loads nothing."""

from pathlib import Path

__version__ = "0.1.0"

LIBRARY = Path(__file__).with_name("libquantfarm_cpu.so")
"""The operators; ``torch.ops.load_library`` loads it."""

MANIFEST = Path(__file__).with_name("manifest.json")
"""What the library holds, for which instruction sets, and what was left out."""

__all__ = ["LIBRARY", "MANIFEST", "__version__"]
