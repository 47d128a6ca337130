"""Videos as the models of each family read them: token for token and number for number what transformers makes of the same
frames, in prompts, in later turns, and packed behind a shared prompt."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers.video_utils import VideoMetadata

import footages
import vlm_cases as cases
from mmrl import UserError
from mmrl.api.episodes import Conversation
from mmrl.api.media.clips import Clip, VideoFrames, VideoLimits
from mmrl.api.media.decoding import cached_frames
from mmrl.api.types import Prompt, Status, Turn, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.prompt_media import PromptMedia
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.pack_conversations import pack

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    long = footages.write(folder / "long.mp4", footages.frames(50), fps=10)
    short = footages.write(folder / "short.mp4", footages.frames(12, 112, 84), fps=4)
    return str(long), str(short)


@pytest.fixture(scope="module", params=FAMILIES)
def policy(request):
    return VLM(PolicyConfig(model=f"tiny:{request.param}:hidden=64,layers=2"))


def theirs(policy, messages, **options):
    """transformers' own processor, given the same frames with the file's rate and their numbers in the part that is shown."""
    clips = [p["video"] for m in messages for p in m["content"] if p["type"] == "video"]
    footage = [cached_frames(clip, policy.reader.video_limits) for clip in clips]
    images = [p["image"] for m in messages for p in m["content"] if p["type"] == "image"]
    text = policy.processor.apply_chat_template([messages], tokenize=False, **options)[0]
    rates = [(f.indices[-1] - f.indices[0]) / (f.times_s[-1] - f.times_s[0]) for f in footage]  # of the files
    metadata = [
        VideoMetadata(
            total_num_frames=round(f.duration_s * rate), fps=rate, frames_indices=[i - round(c.start_s * rate) for i in f.indices]
        )
        for c, f, rate in zip(clips, footage, rates, strict=True)
    ]
    videos = [torch.tensor(f.frames_THWC).permute(0, 3, 1, 2) for f in footage]
    return policy.processor(
        text=[text],
        images=images or None,
        videos=videos,
        return_tensors="pt",
        videos_kwargs={"do_sample_frames": False, "do_resize": False, "video_metadata": [metadata]},
    )


def published(policy, encoded):
    """The positions of Qwen2-VL (Wang et al. 2024, section 2.1) and Qwen2.5-VL, one token after the other: text goes on behind
    the largest position of what was seen. transformers 5.3 to 5.19 leaves time out of that; before and elsewhere it counts."""
    config = policy.model.config
    merge = config.vision_config.spatial_merge_size
    own = config.model_type
    grids = {n: encoded.get(f"{kind}_grid_thw", torch.empty(0, 3)).tolist() for n, kind in ((1, "image"), (2, "video"))}
    if own == "qwen3_vl":  # a video is frames with their times between them
        grids[2] = [(1, h, w) for t, h, w in grids[2] for _ in range(t)]
    seconds = iter(torch.as_tensor(encoded.get("second_per_grid_ts", [])).tolist())
    columns = []
    for kind, group in itertools.groupby(encoded["mm_token_type_ids"][0].tolist()):
        start, length = max((max(c) for c in columns), default=-1) + 1, len(list(group))
        if kind == 0:
            columns += [(start + n,) * 3 for n in range(length)]
            continue
        t, h, w = grids[kind].pop(0)
        step = next(seconds) * config.vision_config.tokens_per_second if kind == 2 and own == "qwen2_5_vl" else 1
        columns += [
            (start + int(i * step), start + j, start + k) for i in range(t) for j in range(h // merge) for k in range(w // merge)
        ]
    return torch.tensor(columns).T


def prompts(files):
    long, short = files
    return [
        Prompt(id="a", messages=[user_message("What happens?", Clip(path=long, count=6))]),
        Prompt(id="b", messages=[user_message("And then?", Clip(path=short, fps=2), cases.picture(3), Clip(path=long, fps=1.5))]),
    ]


def test_a_prompt_is_read_as_transformers_reads_it(policy, files):
    for prompt in prompts(files):
        ours, want = policy.encode(prompt), theirs(policy, prompt.messages, add_generation_prompt=True)
        assert torch.equal(ours.ids, want["input_ids"][0])
        assert torch.equal(ours.media["pixel_values_videos"], want["pixel_values_videos"])
        assert torch.equal(ours.media["video_grid_thw"], want["video_grid_thw"])
        assert torch.equal(ours.positions, published(policy, want))


def test_a_beginning_that_the_tokenizer_adds_stands_before_videos_and_pictures_alike(files):
    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"))
    tokenizer, begin = policy.tokenizer, "<|endoftext|>"
    number = tokenizer.convert_tokens_to_ids(begin)
    tokenizer.bos_token = begin
    added = TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, number)])
    tokenizer.backend_tokenizer.post_processor = added
    template = policy.processor.chat_template
    for policy.processor.chat_template in (template, begin + template):
        for shown in (Clip(path=files[1], fps=2), cases.picture(3)):
            ids = policy.encode(Prompt(messages=[user_message("x", shown)])).ids
            assert [n for n, i in enumerate(ids.tolist()) if i == number] == [0]
    reply = policy.reader._encode_text("x", "y", PromptMedia())["input_ids"][0]
    assert number not in reply


def test_times_matter_as_each_family_has_it(files):
    """Qwen2-VL counts frames, Qwen2.5-VL seconds in its positions, Qwen3-VL writes them."""
    long, _ = files
    slow, fast = (Prompt(messages=[user_message("x", Clip(path=long, count=6, end_s=end))]) for end in (5.0, 2.0))
    read = {}
    for family in FAMILIES:
        policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=1"))
        read[family] = [policy.encode(p) for p in (slow, fast)]
        tokens = [policy.tokenizer.decode(e.ids) for e in read[family]]
        assert ("<0.5 seconds>" in tokens[0]) == (family == "qwen3_vl")
    same = {family: torch.equal(a.positions, b.positions) for family, (a, b) in read.items() if family != "qwen3_vl"}
    assert same == {"qwen2_vl": True, "qwen2_5_vl": False}
    assert not torch.equal(*(e.ids for e in read["qwen3_vl"]))


@pytest.mark.parametrize("family", ["glm46v", "glm_ocr"])
def test_glm_reads_a_video_beside_a_picture_as_pictures(family, files):
    """transformers' own forward can't, and counts too few features of pictures."""
    policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=1"))
    shown = [Clip(path=files[1], count=4), cases.picture(3)]
    together, *alone = [Prompt(messages=[user_message("x", *part)]) for part in (shown, shown[:1], shown[1:])]
    media = [policy.encode(prompt).media for prompt in alone]
    found = policy.encode(together).media
    assert found.keys() == {"pixel_values", "image_grid_thw"}
    assert all(torch.equal(found[k], torch.cat([m[k] for m in media])) for k in found)
    rollouts = cases.rollouts(policy, [together, alone[1]], group=2)
    batch = pack(rollouts, cases.credit(1.0, -1.0, 0.5, 2.0), policy, shared_prefix=True, budget=10_000)
    logprobs, gradient = cases.logprobs_and_gradient(policy, batch)
    assert logprobs.isfinite().all() and gradient.isfinite().all() and gradient.any()


def directly(policy, rollout, said):
    """transformers' own forward of the whole conversation: the logprobs of what was said in it."""
    encoded = theirs(policy, said, add_generation_prompt=False)
    ids = encoded["input_ids"][0].tolist()
    places, at = [], 0
    for turn in rollout.turns:
        wanted = list(turn.token_ids)
        while ids[at : at + len(wanted)] != wanted:
            at += 1
        places += range(at, at + len(wanted))
        at += len(wanted)
    policy.family.forget_positions()
    positions = published(policy, encoded)[:, None]
    encoded = {k: v for k, v in encoded.items() if k != "video_metadata"}
    logits = policy.model(**encoded, position_ids=positions).logits[0]
    logits[:, sorted(policy.banned)] = -torch.inf
    return logits.log_softmax(-1)[[p - 1 for p in places]].gather(1, torch.tensor(ids)[places][:, None])[:, 0]


def conversation(policy, prompt, group, texts):
    """A rollout that says these texts; between them it is shown something else."""
    inputs, turns, said = policy.encode(prompt), [], list(prompt.messages)
    first, observed = inputs, tuple(inputs.ids.tolist())
    for text, shown in texts:
        ids = tuple(policy.encode_completion(text))
        turns.append(Turn(observed_ids=observed, token_ids=ids, logprobs=(-1.0,) * len(ids), text=text))
        said.append({"role": "assistant", "content": [{"type": "text", "text": text}]})
        if shown is not None:
            inputs, observed = policy.extend(inputs, ids, [shown])
            said.append(shown)
    later = inputs if len(turns) > 1 else None
    return Conversation(
        prompt=prompt, group=group, turns=tuple(turns), status=Status.FINISHED, inputs=first, final_inputs=later
    ), said


@pytest.mark.parametrize(("shared", "budget"), [(True, 100_000), (False, 1)])
def test_packed_logprobs_and_gradients_are_those_of_each_conversation_alone(policy, files, shared, budget):
    long, short = files
    one, two = prompts(files)
    again = user_message("Look again.", Clip(path=long, count=3, start_s=2.0))
    made = [
        conversation(policy, one, 0, [("7 12", None)]),
        conversation(policy, one, 0, [("it falls", again), ("no", None)]),
        conversation(policy, two, 1, [("nothing", None)]),
        conversation(policy, two, 1, [("yes", user_message("Sure?", Clip(path=short, fps=1))), ("a cat", again), ("end", None)]),
    ]
    rollouts = [rollout for rollout, _ in made]
    want = [directly(policy, rollout, said) for rollout, said in made]
    longest = max(r.length for r in rollouts)
    weights = torch.linspace(-1, 2, len(rollouts) * longest).reshape(len(rollouts), longest)

    def gradient(loss):
        policy.model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for _, p in policy.parameters() if p.grad is not None])

    expected = gradient(sum((w * weights[n, : len(w)]).sum() for n, w in enumerate(want)))
    batch = pack(rollouts, Credit(advantages=weights), policy, shared_prefix=shared, budget=budget, keep_zero=True)
    got = [policy.outputs(m, 1.0).logprobs_L for m in batch.micro]
    for micro, logprobs_L in zip(batch.micro, got, strict=True):
        alone = torch.stack([want[n][t] for n, t in zip(micro.rollout_L, micro.place_L, strict=True)])
        assert (logprobs_L - alone).abs().max() < 5e-5
    loss = sum((g * m.advantages_L).sum() for g, m in zip(got, batch.micro, strict=True))
    assert ((gradient(loss) - expected).norm() / expected.norm()).item() < 1e-4


def test_the_order_of_frames_is_seen(policy, files):
    long, _ = files
    clip = Clip(path=long, count=6)
    found = []
    for shown in (clip, replace(clip, order=(5, 4, 3, 2, 1, 0))):
        rollout, said = conversation(policy, Prompt(messages=[user_message("x", shown)]), 0, [("yes", None)])
        found.append(directly(policy, rollout, said))
    assert not torch.allclose(*found, atol=1e-4)


def test_a_single_frame_is_shown_as_a_video_of_one_moment(policy, files):
    read = policy.encode(Prompt(messages=[user_message("x", Clip(path=files[0], count=1))]))
    assert read.media["video_grid_thw"][0, 0] == 1


def test_what_a_task_made_is_read_as_the_file_is(policy, files):
    """Footage in memory, and the clip that it was."""
    shown = cached_frames(Clip(path=files[0], count=6))
    made = VideoFrames(frames_THWC=shown.frames_THWC, times_s=shown.times_s, duration_s=shown.duration_s)
    file, memory = (policy.encode(Prompt(messages=[user_message("x", v)])) for v in (Clip(path=files[0], count=6), made))
    assert torch.equal(file.ids, memory.ids) and torch.equal(file.positions, memory.positions)
    gap = (file.media["pixel_values_videos"] - memory.media["pixel_values_videos"]).abs().max()
    assert gap < 0.05, "scaled once from the file, or from its frames"


def test_limits_are_kept(files):
    policy = VLM(
        PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1", video={"fps": 1.0, "max_frames": 4, "max_pixels": 28 * 28})
    )
    read = policy.encode(Prompt(messages=[user_message("x", Clip(path=files[1]))]))
    assert read.media["video_grid_thw"].tolist() == [[2, 2, 2]]  # three seconds at one frame each, two frames a step
    many = policy.encode(Prompt(messages=[user_message("x", Clip(path=files[0], count=20))]))
    assert many.media["video_grid_thw"][0, 0] == 2


@pytest.mark.parametrize("frames", [12, 24, 48, 96])
def test_times_of_frames_are_those_of_vllm(frames):
    """vLLM 0.32, `Qwen2_5_VLForConditionalGeneration.iter_mm_grid_thw`: frame t is at int(t * tokens_per_second * seconds per
    grid), in float64. Five seconds in so many frames have times that are whole numbers but for rounding."""
    vlm = cases.policy("qwen2_5_vl")
    config = vlm.model.config
    grid, seconds = torch.tensor([[frames // 2, 2, 2]]), torch.tensor([2 / (frames / 5.0)])
    ids = torch.tensor([5, config.vision_start_token_id, *[config.video_token_id] * (frames // 2), config.vision_end_token_id])
    encoded = {
        "video_grid_thw": grid,
        "second_per_grid_ts": seconds,
        "mm_token_type_ids": 2 * (ids == config.video_token_id)[None],
    }
    found = vlm.family.positions(ids, encoded)
    per_grid = seconds[0].item() * config.vision_config.tokens_per_second
    wanted = (np.arange(frames // 2) * per_grid).astype(np.int64)
    assert (found[0, 2:-1] - 2).tolist() == wanted.tolist()
    assert found[1:, 2:-1].unique().tolist() == [2] and found[:, -1].unique().tolist() == [3 + wanted.max()]


def test_models_that_see_no_videos_say_so(tmp_path, files):
    policy = VLM(PolicyConfig(model=cases.llava(tmp_path)))
    with pytest.raises(UserError, match="LlavaProcessor takes no videos"):
        policy.encode(Prompt(messages=[user_message("x", Clip(path=files[0]))]))


def test_sizes_are_those_of_the_image_processors():
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    limits = VideoLimits(factor=28, min_pixels=56 * 56, max_pixels=200_000)
    for width, height in ((30, 30), (64, 48), (640, 480), (1920, 1080), (100, 900), (29, 57)):
        h, w = smart_resize(height, width, factor=28, min_pixels=56 * 56, max_pixels=200_000)
        assert limits.size(width, height, 1) == (w, h)
