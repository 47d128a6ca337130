"""What a task says of rows that can't be used."""

from mmrl import Task, UserError


def faults_of(task: Task) -> list[str]:
    """Of all rows."""
    faults = []
    for split in task.splits:
        prompts = task.prompts(split, 0)
        for i in range(len(prompts)):
            try:
                prompts[i]
            except UserError as error:
                faults.append(str(error))
    return faults
