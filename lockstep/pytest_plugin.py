"""The pytest plug-in: check a step or a module in a test, over a matrix of meshes and options.

    @pytest.mark.lockstep(mesh=[{"tp": 1}, {"tp": 2}, {"tp": 4}], sp=[False, True])
    def test_block(lockstep_check, sp):
        lockstep_check(step, lambda mesh: (Block(mesh, sp), batch))

A finding fails the test with the report as its text. Nothing of the checker is imported before a
test calls the fixture; `-p no:lockstep` leaves the plug-in out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.checker.finding import Report

MARKER = (
    "lockstep(mesh=[{axis: ranks}, ...], **options): call the test for each mesh, which its "
    "lockstep_check then uses, and for each value of each option, which is one of its arguments"
)


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker is for, so that `--strict-markers` knows it."""
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each mesh and each combination of options."""
    marker = metafunc.definition.get_closest_marker("lockstep")
    if marker is None:
        return
    options = dict(marker.kwargs)
    meshes = options.pop("mesh", None)
    if marker.args or (meshes is not None and "lockstep_mesh" not in metafunc.fixturenames):
        pytest.fail(_misused(metafunc, marker), pytrace=False)
    if meshes is not None:
        cells = [meshes] if isinstance(meshes, Mapping) else list(meshes)
        ids = [mesh_name(mesh) for mesh in cells]
        metafunc.parametrize("lockstep_mesh", cells, ids=ids, indirect=True)
    for name, values in options.items():
        each = values if isinstance(values, (list, tuple)) else [values]
        metafunc.parametrize(name, each, ids=[f"{name}={value}" for value in each])


@pytest.fixture
def lockstep_mesh(request: pytest.FixtureRequest) -> Mapping[str, int] | None:
    """The mesh of this test's cell, axis -> ranks; None without a marker."""
    return getattr(request, "param", None)


@pytest.fixture
def lockstep_check(
    request: pytest.FixtureRequest, lockstep_mesh: Mapping[str, int] | None
) -> Callable[..., Report]:
    """`ls.check` on the mesh of the marker; what it finds fails the test, with the report as text.

    Call it as `ls.check`: a step or a module, what makes its arguments, and options. `mesh=` takes
    the place of the marker's.
    """

    def check(
        step: Any,
        make: Callable[[Any], Any],
        *,
        mesh: Mapping[str, int] | None = None,
        **options: Any,
    ) -> Report:
        __tracebackhide__ = True
        chosen = mesh if mesh is not None else lockstep_mesh
        if chosen is None:
            pytest.fail(_NO_MESH, pytrace=False)
        from lockstep.checker.check import check as judge

        try:
            report = judge(step, make, mesh=chosen, **options)
        except LockstepError as error:
            pytest.fail(f"{error}\n  with {mesh_name(chosen)}", pytrace=False)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        request.node.add_report_section("call", "lockstep", str(report))  # shown by -rP
        return report

    return check


_NO_MESH = (
    "lockstep_check has no mesh\n"
    '  fix  @pytest.mark.lockstep(mesh=[{"tp": 1}, {"tp": 2}]), or lockstep_check(..., mesh=...)'
)


def mesh_name(mesh: Mapping[str, int]) -> str:
    """A mesh as a test's name has it.

    Example:
        >>> mesh_name({"dp": 2, "tp": 4})
        'dp=2,tp=4'
    """
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def _misused(metafunc: pytest.Metafunc, marker: pytest.Mark) -> str:
    given: Iterable[str] = [*map(repr, marker.args), *(f"{k}=..." for k in marker.kwargs)]
    name = metafunc.function.__name__
    return (
        f"@pytest.mark.lockstep({', '.join(given)}) does not fit {name}\n"
        f"  want {MARKER}\n"
        f"  fix  def {name}(lockstep_check, ...)"
    )
