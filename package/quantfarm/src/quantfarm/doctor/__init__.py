"""Diagnosing an installation: ``quantfarm.doctor()``."""

from quantfarm.callable_package import make_callable

make_callable(__name__, "quantfarm.doctor.report", "doctor")
