class ImageReadMode: ...


def decode_image(*_: object) -> None:
    raise NotImplementedError
