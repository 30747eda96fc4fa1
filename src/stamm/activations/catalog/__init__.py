"""The activation functions that stamm knows, each stated as its gradient.

`ENTRIES`, all of them, and the specs with names of their own are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from stamm.activations.catalog.registry import entries as entries
from stamm.activations.catalog.registry import family as family
from stamm.activations.catalog.registry import get as get
from stamm.activations.catalog.registry import names as names
from stamm.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from stamm.activations.catalog.core import ATLU as ATLU
    from stamm.activations.catalog.core import CAUCHY as CAUCHY
    from stamm.activations.catalog.core import GELU as GELU
    from stamm.activations.catalog.core import LOGISTIC as LOGISTIC
    from stamm.activations.catalog.core import NORMAL as NORMAL
    from stamm.activations.catalog.core import RELU as RELU
    from stamm.activations.catalog.core import RELU2 as RELU2
    from stamm.activations.catalog.core import SILU as SILU
    from stamm.activations.catalog.core import XATLU as XATLU
    from stamm.activations.catalog.core import XGELU as XGELU
    from stamm.activations.catalog.core import XSILU as XSILU
    from stamm.activations.catalog.xielu import XIELU as XIELU
    from stamm.activations.catalog.xielu import XIPRELU as XIPRELU
    from stamm.activations.spec import Spec

    ENTRIES: tuple[Spec, ...]
else:  # a type checker reports a name that is not public
    _CORE = [
        "ATLU",
        "CAUCHY",
        "GELU",
        "LOGISTIC",
        "NORMAL",
        "RELU",
        "RELU2",
        "SILU",
        "XATLU",
        "XGELU",
        "XSILU",
    ]
    __getattr__ = lazy_names(
        __name__, {"core": _CORE, "registry": ("ENTRIES",), "xielu": ("XIELU", "XIPRELU")}
    )
