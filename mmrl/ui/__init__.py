"""How people meet mmrl: the command line, reports and the board."""
