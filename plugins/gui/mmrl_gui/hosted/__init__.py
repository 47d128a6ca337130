"""Screens of other machines: AndroidWorld's and OSWorld's servers, whose HTTP interfaces are spoken as published."""
