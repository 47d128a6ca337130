"""From prompts to scored groups: the rules of sampling, one file each."""
