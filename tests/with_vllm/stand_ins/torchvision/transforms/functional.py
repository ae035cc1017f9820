def pil_to_tensor(*_: object) -> None:
    raise NotImplementedError
