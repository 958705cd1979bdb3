/** The pictures that are searched by: {key, file, url}. Those of this visit are kept; a reload brings back the last. */

import { fitting } from "./api.js";

const KEPT = 2e6; // characters of a picture that a reload may bring back
const LARGEST = 4e6; // bytes that are sent as they are
const SLOT = "boc-picture";
const pictures = new Map();

function add(key, file) {
  const picture = { key, file, url: URL.createObjectURL(file) };
  pictures.set(key, picture);
  return picture;
}

/** The picture of a file, made smaller if it has more than `limit` bytes. */
export async function pictureOf(file, limit = Infinity) {
  const picture = add(`${Date.now()}`, await fitting(file, Math.min(limit, LARGEST)));
  picture.whole = file;
  store(picture);
  return picture;
}

function store({ key, file }) {
  const reader = new FileReader();
  reader.onload = () => {
    try {
      if (reader.result.length < KEPT) sessionStorage.setItem(SLOT, JSON.stringify([key, file.name, reader.result]));
    } catch {
      // no room, or storage is barred: a reload loses the picture
    }
  };
  reader.readAsDataURL(file);
}

/** The picture of `key`, also from before a reload; null if it is gone. */
export function recall(key) {
  if (!key || pictures.has(key)) return pictures.get(key) ?? null;
  try {
    const [stored, name, data] = JSON.parse(sessionStorage.getItem(SLOT));
    if (stored !== key) return null;
    const [, type, code] = /^data:(.*?);base64,(.*)$/.exec(data);
    return add(key, new File([Uint8Array.from(atob(code), (c) => c.charCodeAt(0))], name, { type }));
  } catch {
    return null;
  }
}

const imageOf = (transfer) => {
  const files = [...(transfer?.files ?? [])];
  return files.find((file) => file.type.startsWith("image/")) ?? files[0];
};

/** Call `onFile(file)` for a file dropped, or pasted unless `barred()`; `target` shows while one is dragged. */
export function listenForFiles(target, barred, onFile) {
  let dragged = 0; // elements that the drag has entered and not left
  const holdsFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const count = (change) => (event) => {
    if (!holdsFile(event)) return;
    dragged += change;
    target.hidden = dragged < 1;
  };
  document.addEventListener("dragenter", count(1));
  document.addEventListener("dragleave", count(-1));
  document.addEventListener("dragover", (event) => holdsFile(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    dragged = 0;
    target.hidden = true;
    const file = imageOf(event.dataTransfer);
    if (file) onFile(file);
  });
  document.addEventListener("paste", (event) => {
    const file = imageOf(event.clipboardData);
    if (!file || barred()) return;
    event.preventDefault();
    onFile(file);
  });
}
