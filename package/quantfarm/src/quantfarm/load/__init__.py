"""Opening checkpoints: ``quantfarm.load(path)``."""

from quantfarm.callable_package import make_callable

make_callable(__name__, "quantfarm.load.model", "load")
