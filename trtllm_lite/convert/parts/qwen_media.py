"""What configs of Qwen's multimodal models say beside the text model's keys."""

MEDIA_KEYS = (
    *("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    "vision_token_id",
)
