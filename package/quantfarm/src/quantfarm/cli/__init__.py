"""The command line: ``quantfarm doctor | explain | inspect | convert``."""


def main() -> None:
    """Run the command line of this process; typer and rich are imported only now."""
    from quantfarm.cli.app import run

    run()
