"""One rank of a training: steps, votes, metrics, checkpoints, until the end or until asked away."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lockstep.parallel import layout
from lockstep.run.record import record
from lockstep.run.session import Session, session
from lockstep.run.step import compile as compiled
from lockstep.spmd.mesh import mesh as make_mesh
from lockstep.trainer import speed
from lockstep.trainer.checkpoint import Checkpoints
from lockstep.trainer.codes import DIVERGED, DONE, LEFT
from lockstep.trainer.config import TrainConfig, data_ranks
from lockstep.trainer.data import Batches, open_windows
from lockstep.trainer.guard import Watched
from lockstep.trainer.metrics import Metrics
from lockstep.trainer.model import make_model
from lockstep.trainer.progress import Progress
from lockstep.trainer.saved import Saved, newest, read
from lockstep.trainer.schedule import rate
from lockstep.trainer.signals import Leave
from lockstep.trainer.state import saved, set_step
from lockstep.trainer.steps import make_optimizer, make_steps
from lockstep.trainer.vote import vote


def train(config: TrainConfig, resume: Saved | None, world: int) -> int:
    """Train as one rank, under torchrun or alone.

    Args:
        config: validated.
        resume: the checkpoint to go on from, as this rank found it.
        world: the number of ranks.

    Returns:
        The exit code.
    """
    with Leave() as leave:
        mesh = make_mesh(None, **config.mesh.sizes(world))
        here = session()
        with here.fleet.guard("training"):
            code = Training(config, mesh, here, leave).run(resume)
        here.fleet.close()
        dist.destroy_process_group()
        return code


class Training:
    """Everything that a rank holds while it trains."""

    def __init__(self, config: TrainConfig, mesh: Any, here: Session, leave: Leave) -> None:
        self.config, self.here, self.leave = config, here, leave
        self.device = torch.device(mesh.device_type)
        self.sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        self.model = make_model(config, mesh, self.device)
        self.optimizer = make_optimizer(config, self.model)
        steps, data = make_steps(config), layout(self.model).data
        how = {"mesh": mesh, "data": data, "backend": config.backend}
        how["roles"] = "pp" if "pp" in self.sizes else None
        self.train_step = compiled(steps.train, **how)
        self.eval_step = compiled(steps.evaluate, **how)
        self.place = 0  # among the ranks that read other data
        for axis in data:
            self.place = self.place * self.sizes[axis] + mesh.get_local_rank(axis)
        stage = mesh.get_local_rank("pp") if "pp" in self.sizes else 0
        self.draws = self.place + stage * data_ranks(self.sizes)  # its layers drop by themselves
        self.windows, self.count = open_windows(config)
        self.batches = self.read(0, self.count)
        self.folder = Path(config.folder)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", config.checkpoint)
        self.watched = Watched(config.guard)
        self.step = self.rolled_back = 0

    def read(self, first: int, count: int) -> Batches:
        """Return this rank's batches of some of the sequences."""
        seed, vocab = self.config.seed, self.config.model.vocab
        how = {"seed": seed, "rank": self.place, "ranks": data_ranks(self.sizes), "vocab": vocab}
        return Batches(self.windows, first, count, self.config.data, **how)

    # ---- the loop ------------------------------------------------------------------------------

    def run(self, resume: Saved | None) -> int:
        """Go on from a checkpoint, as rank 0 found it, to the end; returns the exit code."""
        resume = chosen(resume)
        if resume is not None:
            self.load(resume)
        if self.here.rank == 0:
            begin = f"goes on from {resume.path}" if resume else "begins"
            self.here.say(f"{begin}: step {self.step} of {self.config.schedule.steps}")
        shown = self.here.rank == 0
        board = self.config.metrics.tensorboard == "yes"
        with contextlib.ExitStack() as stack:
            metrics = Metrics(self.folder, self.step, board) if shown else None
            if metrics is not None:
                stack.callback(metrics.close)
            steps = self.config.schedule.steps
            progress = stack.enter_context(Progress(steps, self.step, shown))
            code, why = self._steps(metrics, progress)
            self.checkpoints.wait()
        self.here.journal.event("trained", step=self.step, code=code, why=why)
        if why and self.here.rank == 0:
            self.here.say(f"leaves at step {self.step}, exit code {code}: {why}")
        return code

    def _steps(self, metrics: Metrics | None, progress: Progress) -> tuple[int, str]:
        last, pace = self.config.schedule.steps, None
        while self.step < last:
            loss, norm = self._advance()
            pace = pace or Pace(self)  # once the first call has built or loaded its program
            self.checkpoints.poll()
            save = every(self.config.checkpoint.every, self.step)
            odd = ""
            if save or every(self.config.metrics.every, self.step) or self.step == last:
                odd = self.watched.odd(loss.item(), norm.item())
            verdict = vote(bool(self.leave.asked), bool(odd))
            if verdict.odd:
                why = f"{odd or 'another rank saw an odd loss'} at step {self.step}"
                if not self._rolls_back(why):
                    return DIVERGED, why
                pace = None
                continue
            if every(self.config.metrics.every, self.step) or self.step == last:
                told = {"loss": loss.item(), "grad_norm": norm.item(), **pace.since()}
                if metrics is not None:
                    metrics.write("train", self.step, lr=self.lr, **told)
                    known = {name: value for name, value in told.items() if value is not None}
                    record(self.step, lr=self.lr, **known)  # for the curves of `lockstep report`
                progress.update(self.step, f"loss {told['loss']:.4f}")
            if every(self.config.eval.every, self.step):
                self._evaluate(metrics, pace)
            if save or verdict.leave or self.step == last:
                self.save()
            if verdict.leave and self.step < last:
                signal = self.leave.asked or "a signal to another rank"
                return LEFT, f"{signal}; saved, and goes on when it is started again"
        return DONE, ""

    def _advance(self) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        self.lr = rate(config.schedule, config.optimizer.lr, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        # Dropout draws by seed, step and data alone: nothing of it has to be saved.
        torch.manual_seed((config.seed << 40) + (self.step << 16) + self.draws)
        tokens = self.batches.next().flatten(0, 1).to(self.device)
        self.step += 1
        return self.train_step(self.model, self.optimizer, tokens)

    def _evaluate(self, metrics: Metrics | None, pace: Pace) -> None:
        begin = time.monotonic()
        held = self.read(self.count, len(self.windows) - self.count)
        self.model.eval()
        losses = [
            self.eval_step(self.model, held.next().flatten(0, 1).to(self.device)).item()
            for _ in range(self.config.eval.batches)
        ]
        self.model.train()
        if metrics is not None:
            metrics.write("eval", self.step, loss=sum(losses) / len(losses))
        pace.skip(time.monotonic() - begin)

    def _rolls_back(self, why: str) -> bool:
        """Whether it went back to the last checkpoint, keeping its place in the data."""
        self.checkpoints.wait()
        guard = self.config.guard
        found = chosen(newest(self.checkpoints.folder)[0] if self.here.rank == 0 else None)
        if guard.action == "stop" or self.rolled_back >= guard.most or found is None:
            return False
        self.rolled_back += 1
        position = self.batches.position
        self.load(found)
        self.batches.position = position
        self.here.journal.event("rolled_back", step=self.step, why=why)
        if self.here.rank == 0:
            self.here.say(f"{why}: goes on from step {self.step} with the data after")
        return True

    # ---- the state -----------------------------------------------------------------------------

    def save(self) -> None:
        """Begin a checkpoint of the state as it is. Collective."""
        told = {
            "data": self.batches.state(),
            "mean": self.watched.mean,
            "model": dataclasses.asdict(self.config.model),
            "mesh": self.sizes,
        }
        tensors = saved(self.model, self.optimizer)
        self.checkpoints.save(self.step, tensors, told)
        self.here.journal.event("saving", step=self.step)

    def load(self, found: Saved) -> None:
        """Take the state from a checkpoint. Collective."""
        self.checkpoints.load(found, saved(self.model, self.optimizer))
        self.step = found.step
        set_step(self.optimizer, found.step)
        self.batches.load(found.told["data"])
        self.watched.mean = found.told["mean"]


def every(steps: int, step: int) -> bool:
    """Whether something is due at a step that is done every so many; 0: never."""
    return steps > 0 and step % steps == 0


def chosen(found: Saved | None) -> Saved | None:
    """Return the checkpoint that rank 0 found, on every rank. Collective."""
    paths = [None if found is None else str(found.path)]
    dist.broadcast_object_list(paths, 0, device=torch.device("cpu"))
    return None if paths[0] is None else read(Path(paths[0]))


class Pace:
    """Tokens a second since it was asked last; none where no step was made."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._peak = speed.peak(training.device.type)
        self._step, self._time = training.step, time.monotonic()

    def skip(self, seconds: float) -> None:
        """Leave seconds out that were not spent on training."""
        self._time += seconds

    def since(self) -> dict[str, float | int | None]:
        """Return tokens a second over all ranks, the share of the peak, and this rank's memory."""
        training, now = self.training, time.monotonic()
        data, ranks = training.config.data, dist.get_world_size()
        tokens = (training.step - self._step) * data.batch * data.sequence
        rate = tokens / max(now - self._time, 1e-9)
        self._step, self._time = training.step, now
        done = rate * speed.operations(training.config.model, data.sequence) / ranks
        return {
            "tokens_per_s": round(rate, 1) if tokens else None,
            "mfu": round(done / self._peak, 4) if tokens and self._peak is not None else None,
            "memory_bytes": speed.memory(training.device.type),
        }
