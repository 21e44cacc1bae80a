"""``steelyard vision``: which frames of a long video to read for a question, and the answer on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import Command, JsonOption, print_json, quiet_libraries, several
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

TINY = "tiny"

VideoArgument = Annotated[Path, typer.Argument(metavar="VIDEO", help="A video file, or a folder of pictures.")]
QuestionArgument = Annotated[str, typer.Argument(metavar="QUESTION", help="What is asked about it.")]
OptionsOption = Annotated[
    list[str], typer.Option("--options", "-o", metavar="TEXT", help="A possible answer; give at least two.")
]
ModelOption = Annotated[
    str,
    typer.Option("--model", help="Folder of a vision-language model, a served model's name, or tiny (made-up videos)."),
]
UpstreamOption = Annotated[
    str | None, typer.Option("--upstream", metavar="URL", help="An OpenAI-compatible server with log-probabilities.")
]
ProbePixels = Annotated[
    int | None, typer.Option("--probe-pixels", min=1, help="Pixels a frame in the probes: what is saved depends on it.")
]
FocusPixels = Annotated[
    int | None, typer.Option("--focus-pixels", min=1, help="Pixels a frame in the answer. Default: as they are.")
]
SideOption = Annotated[int, typer.Option("--grid", "-g", min=2, help="Side of the grid: its square is sampled.")]
BudgetOption = Annotated[int | None, typer.Option("-k", min=1, help="Frames to select. Default: the question decides.")]
FramesOption = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Write the selected frames as PNG files.")
]

PageOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the map over the frames.")
]

app = typer.Typer(no_args_is_help=True, help="Frames of long videos: which to read, and the answer on them.")


@app.callback()
def _quiet() -> None:
    quiet_libraries()


def ask(
    video: VideoArgument,
    question: QuestionArgument,
    options: OptionsOption,
    model: ModelOption = TINY,
    upstream: UpstreamOption = None,
    probe_pixels: ProbePixels = None,
    focus_pixels: FocusPixels = None,
    grid: SideOption = 8,
    k: BudgetOption = None,
    out: FramesOption = None,
    html: PageOption = None,
    json: JsonOption = False,
) -> None:
    """Answer a question about a video on the frames that the model's own confidence points at (GridProbe)."""
    _run(locals(), answering=True)


def select(
    video: VideoArgument,
    question: QuestionArgument,
    options: OptionsOption,
    model: ModelOption = TINY,
    upstream: UpstreamOption = None,
    probe_pixels: ProbePixels = None,
    focus_pixels: FocusPixels = None,
    grid: SideOption = 8,
    k: BudgetOption = None,
    out: FramesOption = None,
    html: PageOption = None,
    json: JsonOption = False,
) -> None:
    """Select the frames that a question needs, for whatever model answers it later."""
    _run(locals(), answering=False)


def sample(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the pictures are written; must not exist.")],
    frames: Annotated[int, typer.Option("--frames", min=16, help="Frames of the video, a multiple of 8.")] = 64,
    kind: Annotated[str, typer.Option("--kind", help="specific, scene, negation, count or order.")] = "specific",
    seed: Annotated[int, typer.Option("--seed", help="Of the video.")] = 0,
    json: JsonOption = False,
) -> None:
    """Write a made-up video that the tiny model can be asked about, and say what to ask."""
    world = require("steelyard.models.vision.world", "vision")
    generator = require("steelyard.rng", "vision").generator
    one = world.tiny_videos(generator("sample", "video", seed), 1, frames, kinds=(kind,))[0]
    if folder.exists():
        raise InputError(f"{folder} exists; name a folder that does not")
    _write_frames(folder, enumerate(one.frames))
    if json:
        print_json({"question": one.question, "options": one.options, "answer": one.options[one.answer],
                    "evidence": one.evidence.tolist()})  # fmt: skip
        return
    given = " ".join(f"-o {option}" for option in one.options)
    typer.echo(f"steelyard vision ask {printable(str(folder))} '{one.question}' {given} --probe-pixels 64")
    typer.echo(f"right answer: {one.options[one.answer]}")


def _run(given: dict[str, Any], answering: bool) -> None:
    """Read the video, probe it, and print what was found."""
    if given["probe_pixels"] is None:
        raise InputError("--probe-pixels: say how many pixels a frame has in the probes; it decides what is saved")
    home = require("steelyard.vision", "vision")
    reader = _model(given["model"], given["upstream"])
    side = given["grid"]
    film = require("steelyard.data.video", "vision").read_video(given["video"], side * side)
    probe = home.GridProbe(
        reader, side, probe_pixels=given["probe_pixels"], focus_pixels=given["focus_pixels"], budget=given["k"]
    )
    act = probe.answer if answering else probe.select
    times = film.numbers / film.total if given["model"] == TINY else film.timestamps
    found = act(_stacked(film.frames), given["question"], given["options"], timestamps=times)
    numbers = film.numbers[found.frame_ids]
    if given["out"] is not None:
        _write_frames(given["out"], zip(numbers.tolist(), (film.frames[at] for at in found.frame_ids), strict=True))
    said = _said(found, given["options"], numbers.tolist(), film)
    if given["html"] is not None:
        page = _page(given["html"], given["question"], found, film, said)
        typer.echo(f"page: {printable(str(page.resolve()))}", err=True)
    if given["json"]:
        print_json(said)
        return
    for line in _lines(said, given["out"]):
        typer.echo(line)


def _model(name: str, upstream: str | None) -> Any:
    if upstream is not None:
        return require("steelyard.models.vision.endpoint_vlm", "vision").EndpointVLM(upstream, name)
    if name == TINY:
        return require("steelyard.models.vision.tiny_vlm", "vision").TinyVLM.load_default()
    return require("steelyard.models.vision.transformers_vlm", "vision").TransformersVLM.from_pretrained(name)


def _stacked(frames: list[Any]) -> Any:
    """Return frames as one array where they are of one size."""
    import numpy as np

    return np.stack(frames) if len({frame.shape for frame in frames}) == 1 else frames


def _write_frames(folder: Path, frames: Any) -> None:
    picture = require("steelyard.models.vision.pictures", "vision").resized
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, frame in frames:
            picture(frame, None).save(folder / f"frame_{number:06d}.png")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror})") from None


def _said(found: Any, options: list[str], numbers: list[int], film: Any) -> dict[str, Any]:
    """Return what was found as plain values."""
    ensemble = found.ensemble_probs
    return {
        "answer": None if found.answer is None else options[found.answer],
        "probabilities": None if found.probs is None else dict(zip(options, found.probs.tolist(), strict=True)),
        "probes_say": {"answer": options[int(ensemble.argmax())],
                       "probabilities": dict(zip(options, ensemble.tolist(), strict=True))},
        "frames": numbers,
        "seconds": film.timestamps[found.frame_ids].tolist(),
        "budget": found.m_eff,
        "needed": found.needed,
        "sigma": found.sigma,
        "importance": found.importance.tolist(),
        "sampled": film.numbers[found.sampled].tolist(),
        "padded": found.padded,
        "cost": {"tokens": {"probes": found.cost.probes.tokens, "answer": found.cost.focus.tokens,
                            "all_frames": found.cost.monolithic.tokens},
                 "ratio": found.cost.ratio, "ratio_with_fine_probes": found.cost.full_resolution_ratio},
        "settings": found.settings,
    }  # fmt: skip


def _page(path: Path, question: str, found: Any, film: Any, said: dict[str, Any]) -> Path:
    """Write the map over the frames, what the probes and the answer say, and the frames selected."""
    from steelyard.report.answer import Part, Table, write_answer

    picture = require("steelyard.vision.gridprobe.pictures", "vision").map_picture(found, film.frames)
    answers = said["probabilities"] or {}
    rows = tuple(
        (option, f"{value:.1%}", f"{answers[option]:.1%}" if option in answers else "not asked")
        for option, value in said["probes_say"]["probabilities"].items()
    )
    chosen = tuple((str(number), f"{at:.2f}") for number, at in zip(said["frames"], said["seconds"], strict=True))
    parts = (
        Part(
            "Where the model is sure",
            "",
            (Table("Options", ("", "the probes", "the selected frames"), rows),),
            (picture,),
        ),
        Part("Frames selected", "", (Table("In the order of time", ("frame", "second"), chosen),)),
    )
    return write_answer(
        path, question, " ".join(f"{line[:1].upper()}{line[1:]}." for line in list(_lines(said, None))[:2]), parts
    )


def _lines(said: dict[str, Any], out: Path | None) -> Iterator[str]:
    if said["answer"] is not None:
        yield f"{printable(said['answer'])} ({said['probabilities'][said['answer']]:.0%})"
    probes = said["probes_say"]
    yield f"the probes alone say {printable(probes['answer'])} ({probes['probabilities'][probes['answer']]:.0%})"
    shown = ", ".join(map(str, said["frames"][:20])) + (" …" if len(said["frames"]) > 20 else "")
    yield f"{several(len(said['frames']), 'frame')} of {said['settings']['frames']} sampled: {shown}"
    if said["budget"] < said["needed"]:
        yield f"warning: {said['needed']} cells are bright, the budget is {said['budget']}: evidence may be missed (-k)"
    if said["padded"]:
        yield f"note: {several(said['padded'], 'frame')} short of the grid; the video's last frame is repeated"
    ratio, fine = said["cost"]["ratio"], said["cost"]["ratio_with_fine_probes"]
    if ratio is not None:
        yield f"all frames would cost {ratio:.2f} times as much; {fine:.2f} times had the probes full resolution"
    if out is not None:
        yield f"frames: {printable(str(out))}"


COMMANDS = (
    Command("ask", ask, "steelyard vision ask clip.mp4 'Who enters last?' -o 'a man' -o 'a dog' --model DIR "
            "--probe-pixels 50176"),
    Command("select", select, "steelyard vision select clip.mp4 'Who enters last?' -o 'a man' -o 'a dog' --model DIR "
            "--probe-pixels 50176 -k 12 --out frames"),
    Command("sample", sample, "steelyard vision sample clip --kind order"),
)  # fmt: skip
for command in COMMANDS:
    command.add_to(app)
