def pages():
    return {"papers.md": "# Paper index\n"}
