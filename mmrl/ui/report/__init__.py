"""Reports of runs, previews of tasks and the progress panel: HTML, PNG and terminal output."""
