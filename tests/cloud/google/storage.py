"""Cloud Storage: buckets, whose names are the world's, and small objects in them."""

import base64
import email
import hashlib
import json

from .api_errors import ApiError
from .operations import timestamp
from .rest import Request, Rest

MEDIA = "__media__"  # where an object's content is kept


def insert_bucket(rest: Rest, request: Request) -> dict:
    """Make a bucket."""
    name = request.body.get("name", "")
    if rest.store.has("storage", f"b/{name}"):
        raise ApiError(
            "ALREADY_EXISTS",
            "The requested bucket name is not available. The bucket namespace is shared by all users of the "
            "system. Please select a different name and try again.",
        )
    project = rest.world.project(request.query["project"])
    now = timestamp(rest.world.clock.now)
    body = {
        "kind": "storage#bucket",
        "id": name,
        "location": "US",
        "storageClass": "STANDARD",
        **request.body,
        "projectNumber": str(project.number),
        "timeCreated": now,
        "updated": now,
        "metageneration": "1",
        "etag": "CAE=",
        "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
    }
    return rest.store.put("storage", f"b/{name}", body).body


def delete_bucket(rest: Rest, request: Request) -> dict:
    """Delete a bucket, which has to be empty."""
    rest.store.get("storage", request.path)
    if rest.store.children("storage", f"{request.path}/o"):
        raise ApiError("ALREADY_EXISTS", "The bucket you tried to delete is not empty.")
    rest.store.drop("storage", request.path)
    return {}


def list_objects(rest: Rest, request: Request) -> dict:
    """Return the objects of a bucket, or those that begin with a prefix."""
    rest.store.get("storage", request.path.removesuffix("/o"))
    prefix = request.query.get("prefix", "")
    found = [_shown(each.body) for each in rest.store.children("storage", request.path)]
    found = sorted((each for each in found if each["name"].startswith(prefix)), key=lambda each: each["name"])
    return {"kind": "storage#objects", **rest.listed(request, found, "items")}


def get_object(rest: Rest, request: Request) -> dict | bytes:
    """Return what is known of an object, or with ``alt=media`` its content."""
    body = rest.store.get("storage", request.path).body
    return body[MEDIA] if request.query.get("alt") == "media" else _shown(body)


def upload(rest: Rest, path: str, query: dict, content_type: str, raw: bytes) -> dict:
    """Take an upload in one request: ``uploadType`` media or multipart."""
    bucket = path.split("/")[1]
    metadata: dict = {}
    if query["uploadType"][0] == "multipart":
        parts = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw).get_payload()
        metadata, raw = json.loads(parts[0].get_payload()), parts[1].get_payload(decode=True)
    elif query["uploadType"][0] != "media":
        raise ApiError("UNIMPLEMENTED", "The fake takes uploads in one request only.")
    name = metadata.get("name") or query["name"][0]

    def act() -> dict:
        rest.store.get("storage", f"b/{bucket}")
        body = {
            **metadata,
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "size": str(len(raw)),
            "generation": str(len(rest.world.calls)),
            "md5Hash": base64.b64encode(hashlib.md5(raw).digest()).decode(),
            "timeCreated": timestamp(rest.world.clock.now),
            MEDIA: raw,
        }
        quoted = name.replace("%", "%25").replace("/", "%2F")
        rest.store.put("storage", f"b/{bucket}/o/{quoted}", body)
        return _shown(body)

    return rest.world.serve("storage.objects.insert", f"b/{bucket}/o/{name}", act, title="Cloud Storage API")


def _shown(body: dict) -> dict:
    return {key: value for key, value in body.items() if key != MEDIA}


SPECIALS = {
    "storage.buckets.insert": insert_bucket,
    "storage.buckets.delete": delete_bucket,
    "storage.objects.list": list_objects,
    "storage.objects.get": get_object,
}
