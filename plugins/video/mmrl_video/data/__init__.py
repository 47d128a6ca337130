"""Tasks on your own clips: tables of events with times, of questions, of boxes."""
