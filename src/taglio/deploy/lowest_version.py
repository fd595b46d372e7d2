"""The lowest version of ONNX Runtime that opens a file, by its documentation. Opens nothing."""

from collections.abc import Mapping

from taglio.errors import plural

# onnxruntime.ai/docs/reference/compatibility.html, "ONNX opset support": version, highest opset of ai.onnx, of
# ai.onnx.ml, highest IR version. A version reads all opsets from 7 up to its own. Versions that add nothing are left
# out; what came later is not in the table.
_TABLE = (
    ((1, 3), 12, 2, 7),
    ((1, 6), 13, 2, 7),
    ((1, 8), 14, 2, 7),
    ((1, 9), 15, 2, 8),
    ((1, 11), 16, 2, 8),
    ((1, 12), 17, 3, 8),
    ((1, 14), 18, 3, 8),
    ((1, 15), 19, 3, 8),
    ((1, 16), 19, 3, 9),
    ((1, 17), 20, 4, 9),
    ((1, 18), 21, 4, 10),
)
_STANDARD = frozenset({"ai.onnx", "ai.onnx.ml"})


def lowest_onnxruntime(opsets: Mapping[str, int], ir_version: int, operators: Mapping[str, int]) -> str:
    """A sentence on the lowest version for a file with these `opsets` by domain ("ai.onnx" for the standard one), and
    counts of `operators` of other domains by type.

    Such operators have no version of their own: the documentation does not say in which release each first appeared.
    """
    if operators or not _STANDARD.issuperset(opsets):
        kinds = ", ".join(operators) or ", ".join(sorted(set(opsets) - _STANDARD))
        return (
            f"The file has {plural(sum(operators.values()) or 1, 'operator')} of ONNX Runtime's own ({kinds}), whose "
            "first versions its documentation does not list"
        )
    fits = (
        version
        for version, standard, ml, ir in _TABLE
        if opsets.get("ai.onnx", 0) <= standard and opsets.get("ai.onnx.ml", 0) <= ml and ir_version <= ir
    )
    lowest = next(fits, None)
    if lowest is None:
        return "ONNX Runtime's compatibility table, which ends at 1.20, has no version for this opset and IR version"
    return (
        f"By ONNX Runtime's compatibility table, {'.'.join(map(str, lowest))} is the lowest version that opens the file"
    )
