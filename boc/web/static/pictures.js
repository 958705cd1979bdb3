/** The query pictures, {key, file, url}. They are kept until the page is closed; after a reload, the last picture is restored. */

import { fitting } from "./api.js";

const KEPT = 2e6; // maximum size, in characters, of a picture that is kept for a reload
const LARGEST = 4e6; // maximum size, in bytes, of files that are sent unchanged
const SLOT = "boc-picture";
const pictures = new Map();

function add(key, file) {
  const picture = { key, file, url: URL.createObjectURL(file) };
  pictures.set(key, picture);
  return picture;
}

/** The picture in a file, reduced if it has more than `limit` bytes. */
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
      // storage is full or not allowed, so the picture will be lost on reload
    }
  };
  reader.readAsDataURL(file);
}

/** The picture for `key`, even from before a reload, or null if it is no longer available. */
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

/** Call `onFile(file)` for a file that is dropped or, unless `barred()`, pasted. `target` is visible while a file is dragged. */
export function listenForFiles(target, barred, onFile) {
  let dragged = 0; // number of elements that the drag has entered but not left
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
