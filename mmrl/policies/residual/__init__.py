"""A small policy that corrects the actions of a frozen one."""
