"""The command line: parse, call, render. No decision is made here."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .errors import BadUsage, PosinterpError, WriteFailed
from .method import NAMES, SINES
from .report import Progress, Reporter, Stage, Steps

if TYPE_CHECKING:
    from .verification import Verdict

app = typer.Typer(
    name="posinterp",
    help="Take a pretrained vision-transformer checkpoint to another resolution.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=True,
)


USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # a mistake in the words of a command


class Colour(str, Enum):
    auto = "auto"
    always = "always"
    never = "never"


def _family_names() -> list[str]:
    from .families import FAMILIES

    return [family.name for family in FAMILIES]


Ckpt = Annotated[
    str,
    typer.Argument(metavar="CKPT", help="A file, a folder, hf-hub:ORG/NAME, or a timm model name."),
]
Img = Annotated[
    str | None,
    typer.Option(
        "--img", metavar="SIZE", help="Target image size: 384, 384x512 (height x width), or 16x224x224 (frames first)."
    ),
]
SrcImg = Annotated[
    str | None,
    typer.Option("--src-img", metavar="SIZE", help="The size the checkpoint is for, where its config does not say."),
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        autocompletion=lambda: ["auto", *NAMES, SINES],
        metavar="METHOD",
        help="auto (what the home library does), nearest, nearest-exact, bilinear, bicubic, area, lanczos3, geometric; "
        "sincos: a table of fixed sines, as MAE's, computed anew.",
    ),
]
Antialias = Annotated[
    bool | None, typer.Option("--antialias/--no-antialias", help="Low-pass when shrinking.", show_default=False)
]
AlignCorners = Annotated[
    bool | None,
    typer.Option("--align-corners/--no-align-corners", help="Corner cells of both grids coincide.", show_default=False),
]
PatchSide = Annotated[
    int | None, typer.Option("--patch", metavar="N", help="New patch size: the patch kernel is resampled too.")
]
FamilyName = Annotated[
    str | None,
    typer.Option(
        "--family",
        autocompletion=_family_names,
        metavar="NAME",
        help="A family, or a timm model name, instead of guessing.",
    ),
]
WindowSize = Annotated[
    str,
    typer.Option(
        "--window",
        metavar="keep|scale|N",
        help="For tables that span windows: keep them, scale them with the image, or 8, 8x12, 12,12,24,12 (by stage).",
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", metavar="'GLOB = LAYOUT'", help="A tensor of no known family: 'pos = 1 (p h w) c'. Repeatable."
    ),
]
Images = Annotated[
    str | None,
    typer.Option("--images", metavar="DIR", help="Compare features on these images, not on built-in patterns."),
]
AllowNonfinite = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Tables with NaN or Inf are no reason to refuse: keep them, and say.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="One word: the output's path, the family, ok or failed.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
Color = Annotated[Colour, typer.Option("--color", help="Colour in the answer.")]


def _version(asked: bool) -> None:
    if asked:
        Reporter().versions()
        raise typer.Exit


@app.callback()
def _posinterp(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the versions of this and of what it uses."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def resize(
    ckpt: Ckpt,
    img: Annotated[
        str | None,
        typer.Option(
            "--img",
            metavar="SIZE[,SIZE..]",
            help="Target image size: 384, 384x512 (height x width), or 16x224x224 (frames first). Several: 224,384.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="A folder, or a file if it ends in .safetensors, .pth, ... For several sizes the folder of theirs.",
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option("--frames", metavar="N", help="Of clips and volumes: the number of frames, or slices, instead."),
    ] = None,
    patch: PatchSide = None,
    window: WindowSize = "keep",
    method: MethodName = "auto",
    antialias: Antialias = None,
    align_corners: AlignCorners = None,
    src_img: SrcImg = None,
    family: FamilyName = None,
    rule: Rules = None,
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            autocompletion=lambda: ["drop", "keep"],
            metavar="drop|keep",
            help="Of a training checkpoint: leave its state out, or resample its moments with the parameters.",
        ),
    ] = "drop",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
    allow_nonfinite: AllowNonfinite = False,
    link: Annotated[
        bool, typer.Option("--link", help="Shards that stay share the source's blocks on disk, where it can.")
    ] = False,
    fsync: Annotated[bool, typer.Option("--fsync/--no-fsync", help="Wait until the disk has it.")] = True,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """Write the checkpoint for another image size."""
    report = _reporter("resize", json, quiet, verbose, color)

    def run() -> int:
        from .planning import plan
        from .store import open_checkpoint
        from .writing import default_out, execute, places_for

        source = open_checkpoint(ckpt, progress=not quiet)
        sizes = [img] if img is None else img.split(",")
        plans = [
            plan(
                source,
                size,
                frames=frames,
                src_img=src_img,
                method=method,
                antialias=antialias,
                align_corners=align_corners,
                patch=patch,
                window=window,
                family=family,
                rules=rule or (),
                optimizer=optimizer,
                look=dry_run,
            )
            for size in sizes
        ]
        if dry_run:
            report.plans([(made, None) for made in plans])
            return 0
        several = len(plans) > 1
        outs = places_for(plans, out, overwrite=force) if several else [out or default_out(plans[0])]
        progress = Progress(sum(info.nbytes for info in source.tensors.values()) * len(plans), quiet=quiet or json)
        done = []
        try:
            for made, place in zip(plans, outs, strict=True):
                written = execute(
                    made, place, overwrite=force, sync=fsync, allow_nonfinite=allow_nonfinite, link=link, tick=progress
                )
                done.append((made, written))
        except PosinterpError as error:
            if done:
                error.message += f"; written before: {', '.join(str(written.out) for _, written in done)}"
            raise
        finally:
            progress.close()
        report.plans(done)
        return 0

    _run(report, run)


@app.command()
def inspect(
    ckpt: Annotated[
        str | None,
        typer.Argument(metavar="[CKPT]", help="A file, a folder, hf-hub:ORG/NAME, or a timm model name."),
    ] = None,
    img: Img = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch", metavar="NAME", help="Instead of CKPT: which rules a timm model needs, from its shapes at --img."
        ),
    ] = None,
    patch: PatchSide = None,
    window: WindowSize = "keep",
    src_img: SrcImg = None,
    family: FamilyName = None,
    rule: Rules = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """Say what a checkpoint holds; with --img, whether and how it fits a size (exit code 1 if it does not)."""
    report = _reporter("inspect", json, quiet, verbose, color)

    def run() -> int:
        if arch is not None:
            return _proposed(report, arch, ckpt, img, src_img)
        if ckpt is None:
            raise BadUsage("no checkpoint was given", hint="posinterp inspect CKPT, or --arch NAME --img SIZE")
        from .inspection import inspect_checkpoint

        found = inspect_checkpoint(
            ckpt, img, patch=patch, window=window, src_img=src_img, family=family, rules=rule or ()
        )
        report.inspection(found)
        return 1 if found.problem else 0

    _run(report, run)


def _proposed(report: Reporter, arch: str, ckpt: str | None, img: str | None, src_img: str | None) -> int:
    if ckpt is not None or img is None:
        raise BadUsage("--arch goes with --img, and without a checkpoint", hint=f"inspect --arch {arch} --img 384")
    from .proposal import propose

    found = propose(arch, img, src_img=src_img)
    report.proposals(found)
    return 0 if found.family else 1


@app.command()
def peg(
    ckpt: Ckpt,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="A folder.")],
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            autocompletion=lambda: ["hybrid", "replace", "distill"],
            metavar="MODE",
            help="hybrid (table kept: computes what the source computes; with --steps then taught other sizes), "
            "replace (table dropped), distill (dropped, then taught by the source).",
        ),
    ] = "hybrid",
    img: Annotated[
        str | None,
        typer.Option("--img", metavar="SIZE", help="The size whose grid is stored; the source's if not said."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="0,1,..",
            help="The blocks after which a PEG stands, from 0.  [default: 0; 0,1,2,3 for distill]",
        ),
    ] = None,
    kernel: Annotated[
        int | None,
        typer.Option("--kernel", metavar="K", help="The side of the PEGs, odd.  [default: 3; 7 for distill]"),
    ] = None,
    pool: Annotated[
        str, typer.Option("--pool", metavar="token|avg", help="avg: no class token, the mean over patches instead.")
    ] = "token",
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="DIR", help="Unlabelled images: PEGs are fitted to them, or taught by them."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="Steps of the distillation.  [default: 1000]")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Images a step of the distillation.  [default: 64]")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="SIZE,SIZE..",
            help="Sizes that the distillation teaches: 160,224,320x256.  [default: eight, 0.7 to 1.9 of the source's]",
        ),
    ] = None,
    src_img: SrcImg = None,
    family: FamilyName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
    fsync: Annotated[bool, typer.Option("--fsync/--no-fsync", help="Wait until the disk has it.")] = True,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """Free a learned-position ViT from its grid: give it convolutions (PEGs) that tell places apart at any size."""
    report = _reporter("peg", json, quiet, verbose, color)

    def run() -> int:
        from .pegging import STEPS, check_wishes, completed, places_of, plan_peg, resume_file
        from .store import open_checkpoint
        from .writing import execute

        check_wishes(mode, images, steps, sizes.split(",") if sizes else (), batch)
        made = plan_peg(
            open_checkpoint(ckpt, progress=not quiet),
            mode=mode,
            img=img,
            after=None if after is None else places_of(after),
            kernel=kernel,
            pool=pool,
            sizes=sizes.split(",") if sizes else (),
            src_img=src_img,
            family=family,
        )
        if dry_run:
            report.pegged(made)
            return 0
        progress = Steps(steps or STEPS, quiet=quiet or json)
        try:
            made = completed(made, out, images=images, steps=steps, batch=batch, overwrite=force, tick=progress)
        except KeyboardInterrupt:
            if not resume_file(out).exists():
                raise
            progress.close()
            report.tell(f"interrupted; the same command goes on from {resume_file(out)}")
            return 130
        finally:
            progress.close()
        written = execute(made.resizing, out, overwrite=force, sync=fsync)
        report.pegged(made, written=written)
        return 0

    _run(report, run)


@app.command()
def verify(
    ckpt: Ckpt,
    against: Annotated[
        str | None, typer.Option("--against", metavar="SOURCE", help="The checkpoint it was made from.")
    ] = None,
    img: Img = None,
    method: MethodName = "auto",
    antialias: Antialias = None,
    align_corners: AlignCorners = None,
    src_img: SrcImg = None,
    family: FamilyName = None,
    rule: Rules = None,
    images: Images = None,
    fail_under: Annotated[
        float | None,
        typer.Option("--fail-under", metavar="COSINE", help="Fail if the features' mean similarity is less: 0.9."),
    ] = None,
    allow_nonfinite: AllowNonfinite = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the checks there, as JUnit's XML, too.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """Prove a resized checkpoint right: exit code 0 if it is, 1 if not."""
    report = _reporter("verify", json, quiet, verbose, color)

    def run() -> int:
        stage = Stage("checking", quiet=quiet or json)
        try:
            verdict = _verified(stage)
        finally:
            stage.close()
        if junit is not None:
            report.junit(junit, ckpt, verdict)
        report.annotations(ckpt, verdict)
        report.verdict(verdict)
        return 0 if verdict.ok else 1

    def _verified(stage: Stage) -> Verdict:
        from .verification import verify as check

        return check(
            ckpt,
            against=against,
            img=img,
            src_img=src_img,
            family=family,
            rules=rule or (),
            method=method,
            antialias=antialias,
            align_corners=align_corners,
            images=images,
            fail_under=fail_under,
            allow_nonfinite=allow_nonfinite,
            tell=stage,
        )

    def failed(error: PosinterpError) -> None:
        if junit is not None:
            report.junit(junit, ckpt, error)
        report.annotations(ckpt, error)

    _run(report, run, failed)


@app.command()
def plot(
    ckpt: Ckpt,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FIG", help="A file that ends in .png, .svg or .pdf.")
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            "--show",
            metavar="FIGURE",
            help="tiles, resize, methods, components, bias, peg.  [default: by what CKPT has]",
        ),
    ] = None,
    term: Annotated[bool, typer.Option("--term", help="Show it here, in the terminal.")] = False,
    img: Img = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="SOURCE", help="The checkpoint it was made from: before and after."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="ROW,COL", help="A place of the source's grid, counted from 0. Repeatable."),
    ] = None,
    tensor: Annotated[
        str | None, typer.Option("--tensor", metavar="NAME", help="The tensor, where the checkpoint has several.")
    ] = None,
    window: WindowSize = "keep",
    method: MethodName = "auto",
    antialias: Antialias = None,
    align_corners: AlignCorners = None,
    src_img: SrcImg = None,
    family: FamilyName = None,
    rule: Rules = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a figure that exists.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """Draw what a checkpoint's positions look like, and what another size makes of them."""
    report = _reporter("plot", json, quiet, verbose, color)

    def run() -> int:
        if out is None and not term and not json:
            raise BadUsage("no figure was asked for", hint="-o FIG.png writes one, --term shows it here")
        from .plotting import figure_format, make_figure, place_of, save_figure

        if out is not None:
            figure_format(out)  # before a checkpoint is fetched
        figure = make_figure(
            ckpt,
            show,
            img=img,
            against=against,
            progress=not quiet,
            at=[place_of(text) for text in at or ()],
            tensor=tensor,
            src_img=src_img,
            family=family,
            rules=rule or (),
            window=window,
            method=method,
            antialias=antialias,
            align_corners=align_corners,
        )
        if out is not None:
            save_figure(figure, out, overwrite=force)
        report.figure(figure, out, term=term)
        return 0

    _run(report, run)


@app.command("report")
def report_(
    ckpt: Ckpt,
    against: Annotated[str, typer.Option("--against", metavar="SOURCE", help="The checkpoint it was made from.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PAGE", help="A file that ends in .html.")],
    img: Img = None,
    method: MethodName = "auto",
    antialias: Antialias = None,
    align_corners: AlignCorners = None,
    src_img: SrcImg = None,
    family: FamilyName = None,
    rule: Rules = None,
    images: Images = None,
    accuracy: Annotated[
        str | None,
        typer.Option(
            "--accuracy",
            metavar="DATA",
            help="Measure it before and after: a folder with a folder of images for each class, or an .npz of images "
            "and labels.",
        ),
    ] = None,
    allow_nonfinite: AllowNonfinite = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a page that exists.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """Verify a resized checkpoint and write plan, checks and figures on one page (exit code 1 if a check fails)."""
    report = _reporter("report", json, quiet, verbose, color)

    def run() -> int:
        from .files import check_target, write_whole

        if out.suffix.lower() not in (".html", ".htm"):
            raise BadUsage(f"{out} is no page", hint="name it PAGE.html")
        check_target(out, overwrite=force)  # before minutes are spent
        from .page import make_page

        page = make_page(
            ckpt,
            against,
            accuracy=accuracy,
            img=img,
            src_img=src_img,
            family=family,
            rules=rule or (),
            method=method,
            antialias=antialias,
            align_corners=align_corners,
            images=images,
            allow_nonfinite=allow_nonfinite,
        )
        write_whole(out, page.html.encode("utf-8"), overwrite=force)
        report.page(page, out)
        return 0 if page.verdict.ok else 1

    _run(report, run)


@app.command()
def families(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", autocompletion=_family_names, help="One family, or a timm model name."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = Colour.auto,
) -> None:
    """List the architectures that are known, or say all about one."""
    report = _reporter("families", json, quiet, verbose, color)

    def run() -> int:
        from .families import FAMILIES, family_named

        report.families(family_named(name) if name else FAMILIES)
        return 0

    _run(report, run)


def _reporter(command: str, json: bool, quiet: bool, verbose: bool, color: Colour) -> Reporter:
    return Reporter(command, "json" if json else "quiet" if quiet else "human", color.value, verbose)


def _run(
    report: Reporter, work: Callable[[], int], failed: Callable[[PosinterpError], None] = lambda error: None
) -> None:
    """Run a command: a user's mistake is a sentence and exit code 2, anything else unexpected is a bug.

    `failed`: what else is done about a mistake.
    """
    try:
        code = work()
        sys.stdout.flush()
    except PosinterpError as error:
        report.failure(error)
        with contextlib.suppress(PosinterpError):  # of a file that cannot be written: the first mistake is said
            failed(error)
        code = 2
    except BrokenPipeError:  # the reader has seen enough: end as SIGPIPE would
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:  # of stdout, or a file that vanished: the machine's fault, not a bug
        report.failure(WriteFailed(f"{error.filename or 'the output'}: {error.strerror or error}"))
        code = 2
    except KeyboardInterrupt:
        report.tell("interrupted; nothing was left behind")
        code = 130
    raise typer.Exit(code)


def _terminated(*_: Any) -> None:
    raise SystemExit(143)  # unwinds, so that temporary files go


def main() -> None:
    """The entry point. Exit codes: 0 done, 1 the answer is no, 2 a mistake in usage or input, 130 interrupted."""
    # numpy's products here are small: waking its threads takes many times as long as the product itself.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or → is no reason to fail
    signal.signal(signal.SIGTERM, _terminated)
    try:
        _answered(sys.argv[1:])
    except Exception:
        sys.stderr.write("this is a bug in posinterp; please report it with what follows\n")
        raise


def _answered(words: Sequence[str]) -> NoReturn:
    """Run the command that the words say. With --json among them a mistake in usage is an object, too."""
    if "--json" not in words:
        app()
    try:
        code = typer.main.get_command(app).main(list(words), prog_name="posinterp", standalone_mode=False)
    except USAGE_ERROR as error:
        named: Any = error  # click's, which typer has under another name from one version to the next
        path = named.ctx.command_path if named.ctx is not None else "posinterp"
        mistake = BadUsage(named.format_message(), hint=f"`{path} --help` lists what there is")
        Reporter(path.partition(" ")[2], "json").failure(mistake)
        sys.exit(2)
    sys.exit(code or 0)
