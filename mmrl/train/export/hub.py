"""Upload a folder to a repository on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from mmrl.api.errors import UserError, shorten


class Hub:
    """A model repository on the hub that may be written to."""

    def __init__(self, name: str, private: bool) -> None:
        """name: USER/MODEL. private: who makes the repository alone can see it; one that is there stays as it is.

        Raises UserError for a name that can't be one, without a login, and without permission."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        self.name, self.api = name, HfApi()
        try:
            validate_repo_id(name)
            self.url = str(self.api.create_repo(name, private=private, exist_ok=True))
        except HFValidationError as error:
            raise UserError(f"--hub {name!r:.100} is no name of a repository: {shorten(error, 150)}: write USER/MODEL") from error
        except Exception as error:
            raise UserError(f"--hub {name}: {_reason(error)}: nothing was written") from error

    def upload(self, folder: Path) -> str:
        """Upload the folder's files; returns the repository's address. Raises UserError; the folder stays."""
        try:
            self.api.upload_folder(repo_id=self.name, folder_path=folder, commit_message="mmrl export")
        except Exception as error:
            raise UserError(
                f"{folder} is complete, and could not be uploaded: {_reason(error)}: hf upload {self.name} {folder} tries again"
            ) from error
        return self.url


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return "the hub doesn't know you (401): log in with hf auth login, or set HF_TOKEN"
    if status == 403:
        return "the hub lets you not write there (403): take a name of your own, and a token with write access"
    return shorten(error, 300)
