"""Choosing a backend: ``quantfarm.select(request, host)``."""

from quantfarm.callable_package import make_callable

make_callable(__name__, "quantfarm.select.choose", "select")
