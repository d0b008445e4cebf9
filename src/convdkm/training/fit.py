"""Train a machine from start to end: in memory, or as a run in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.model import DeepKernelMachine
from convdkm.presets import preset
from convdkm.storage.files import write_text
from convdkm.training.checkpoint import CheckpointStore
from convdkm.training.folder import CHECKPOINTS, CONFIG, Writer, is_run, read_config, writing
from convdkm.training.origin import with_machine_of_origin
from convdkm.training.run import Run, require_fit
from convdkm.training.session import Stop, prepared
from convdkm.training.sinks import Sink
from convdkm.training.sources import as_dataset
from convdkm.training.world import World, joined_world


def fit(
    model: str | RunConfig | DeepKernelMachine = "quick",
    data: Any = None,
    *,
    folder: str | Path | None = None,
    overwrite: bool = False,
    sinks: Iterable[Sink] = (),
    stop: Stop | None = None,
    **options: Any,
) -> Run:
    """Train a machine on images.

    Args:
        model: a preset's name, a whole configuration, or a machine of your own (trained by the
            recipe of the preset ``quick`` where ``options`` do not say otherwise).
        data: the name of a data set, a path, a :class:`~convdkm.data.Dataset`, a pair
            ``(images, labels)`` or four arrays (training, then test), or a PyTorch dataset; that of
            the configuration, or the digits, by default.
        folder: keep the run there: settings, metrics of every step, checkpoints. In memory only by
            default.
        overwrite: replace a run that is in the folder.
        sinks: where else records go, such as :class:`~convdkm.training.TerminalSink`.
        stop: asked after every step, and after every batch that is scored, whether to stop there;
            the run can be resumed.
        options: any option of :class:`~convdkm.config.RunConfig`, such as ``epochs=3``. With
            ``start_from="cifar10"`` (a pretrained machine, the folder of a run or a file of
            :meth:`Run.save`) the machine is that one, with a new top layer.

    Returns:
        The run, with its figures in ``run.metrics``.
    """
    if data is None:
        data = model.data.dataset if isinstance(model, RunConfig) else "digits"
    dataset, name = as_dataset(data)
    if isinstance(model, RunConfig):
        config, given = model.updated({**options, "dataset": name}), None
    else:
        chosen = preset(model if isinstance(model, str) else "quick")
        config, given = chosen.config(name, **options), options
    machine = model if isinstance(model, DeepKernelMachine) else None
    if machine is None:
        config = with_machine_of_origin(config, given)
    elif config.training.start_from is not None:
        raise InvalidInputError(
            "start_from goes with the machines that settings describe; load the state of another"
            " into a machine of your own by load_state_dict"
        )
    folder = None if folder is None else Path(folder)
    with (
        joined_world(config.training.timeout_minutes) as world,
        _writer(folder, world, overwrite=overwrite) as writer,
    ):
        if writer is not None and machine is None:
            writer.announce(config)
        return prepared(
            config, dataset, world, folder, writer, model=machine, sinks=sinks, stop=stop
        ).run()


def resume(
    folder: str | Path,
    *,
    data: Any = None,
    model: DeepKernelMachine | None = None,
    sinks: Iterable[Sink] = (),
    stop: Stop | None = None,
    **options: Any,
) -> Run:
    """Go on with a run that was stopped, from its last checkpoint, or from its start without one.

    Args:
        folder: of the run.
        data: the data of the run, where it cannot be loaded by its name; or where it is now.
        model: a machine of the same shape, where it was one of your own.
        sinks, stop: as in :func:`fit`.
        options: of the recipe that may change, such as ``device``.
    """
    folder = Path(folder)
    dataset = None
    if data is not None:
        dataset, name = as_dataset(data)
        options |= {"dataset": name} if dataset is None else {}
    found, no_settings = read_config(folder)
    config = found.updated(options)
    with (
        joined_world(config.training.timeout_minutes) as world,
        _writer(folder, world, resuming=True) as writer,
    ):
        store = CheckpointStore(folder / CHECKPOINTS)
        checkpoint = warning = None
        if store.names() or not is_run(folder):  # tried before anything slow is done
            checkpoint, warning = store.load(use=lambda each: require_fit(each, config, model))
        session = prepared(
            config,
            dataset,
            world,
            folder,
            writer,
            checkpoint=checkpoint,
            model=model,
            sinks=sinks,
            stop=stop,
        )
        if world.leads:
            if options or no_settings:  # now that they are known to work
                write_text(folder / CONFIG, session.result.config.to_yaml())
            for text in filter(None, (warning, no_settings)):
                session.trainer.sinks.message(text, "warning")
        return session.run()


def _writer(
    folder: Path | None, world: World, **how: bool
) -> AbstractContextManager[Writer | None]:
    """The right to write into the folder, for the process that does."""
    return writing(folder, **how) if folder is not None and world.leads else nullcontext()
