"""The demonstration of a federation, with its processes replaced."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands import federate, federate_demo
from sottovoce.errors import LostProcess, SottoError


class Devices(list):
    """The names of the devices that run now; `lost` ends by itself."""

    lost = ""
    served: SimpleNamespace | None = None


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    running = Devices()

    class Device(SimpleNamespace):
        def __init__(self, name, command, folder):
            super().__init__(name=name, start=lambda: running.append(name), stop=lambda: running.remove(name))

        def check_running(self):
            assert self.name in running
            if self.name == running.lost:
                raise LostProcess(f"{self.name} ended (status 1)")

    def serve(recipe, federation, out, serving, *, observer, stop):
        running.served = SimpleNamespace(recipe=recipe, serving=serving, devices=list(running))
        assert not stop()
        return SimpleNamespace(path=out)

    monkeypatch.setattr(federate_demo, "require_flower", lambda: None)
    monkeypatch.setattr(federate_demo, "prepare_demo", lambda *_, **__: SimpleNamespace(train_users=20))
    monkeypatch.setattr(federate_demo, "Child", Device)
    roster = SimpleNamespace(path=Path("federation"), bundle=lambda name: Path(name))
    monkeypatch.setattr(federate_demo, "create_federation", lambda *_: roster)
    monkeypatch.setattr(federate_demo, "serve_federation", serve)
    return running


def run(out: Path) -> object:
    return federate_demo.run_federation_demo(
        out, users=40, notify=lambda text: None, progress=lambda name: nullcontext()
    )


def test_a_demonstration_trains_with_two_devices_and_writes_a_report(devices, monkeypatch, tmp_path):
    reports = []
    monkeypatch.setattr(federate_demo, "report_run", reports.append)
    run(tmp_path / "demo")
    assert devices.served.devices == ["north", "south"]
    assert (devices.served.serving.at_least, devices.served.recipe.privacy.users) == (2, 40)
    assert devices.served.recipe.privacy.cohort == 10
    assert reports == [tmp_path / "demo" / "run"]
    assert devices == []  # all are stopped


def test_a_demonstration_whose_device_ended_says_so(devices, tmp_path):
    """It would be waited for."""
    devices.lost = "south"
    with pytest.raises(LostProcess, match="south ended"):
        run(tmp_path / "demo")
    assert devices == []


def test_a_folder_that_exists_is_left_alone(devices, tmp_path):
    with pytest.raises(SottoError, match="exists; delete it"):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_demonstration_without_flower_makes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(federate, "find_spec", lambda name: None)
    with pytest.raises(SottoError, match=r"pip install 'sottovoce\[federation\]'"):
        run(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()
